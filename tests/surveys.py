"""What tests of surveys share: a short play, and a driver that kills a worker and then itself."""

from __future__ import annotations

from pathlib import Path

KIDS = "The kids were scared of the lions, so they left right away."
PLAY = [
    "Who's there? Nay, answer me: stand, and unfold yourself.",
    "Long live the king! Bernardo? He.",
    "You come most carefully upon your hour.",
    "'Tis now struck twelve; get thee to bed, Francisco.",
    "For this relief much thanks: 'tis bitter cold, and I am sick at heart.",
    "Have you had quiet guard? Not a mouse stirring.",
    "Well, good night. If you do meet Horatio and Marcellus, bid them make haste.",
    "I think I hear them. Stand, ho! Who's there?",
]


def killing_driver(out: Path, engine: str = "local") -> str:
    """The code of a driver that kills a worker after the first part, and itself when half is done."""
    return f"""
import multiprocessing, os, signal
import sightline as sl

killed = []

def report(done, total, errors):
    if done >= 1 and not killed:
        killed.append(multiprocessing.active_children()[0].pid)
        os.kill(killed[0], signal.SIGKILL)
    elif done >= total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    sl.survey("minilm", {PLAY!r}, {str(out)!r}, {engine!r}, workers=2, per_part=1, report=report)
"""
