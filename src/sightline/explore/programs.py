"""What is on the screen as a program that gives the same numbers: how it comes by the run, and then what is shown.

A run that was kept is read from where it lies; a text or a picture is given to its model once more, edits and all.
"""

from __future__ import annotations

from sightline.explore.changes import read
from sightline.explore.program_parts import Names, cells, shown
from sightline.explore.readings import OWN
from sightline.explore.run import Run
from sightline.explore.saved import SIGHT, OneSight
from sightline.explore.screen import Beside, Model, Screen, checked
from sightline.models.checkpoints.builtin import BUILTINS

# Above a program of a notebook that was given its model.
HELD = "# `model` is the one that this explorer was given"


def python(run: Run, screen: Screen, beside: Beside | None = None) -> str:
    """The program. What is beside it has names that end with `_beside`."""
    lines = _one(run, screen, "", None)
    if beside is not None:
        lines += ["", *_one(beside.run, beside.screen, "_beside", run)]
        if beside.difference:
            lines += ["difference = cells - cells_beside", "print(difference)"]
    needed = [name for name, use in (("torch", "torch."), ("sightline as sl", "sl.")) if any(use in x for x in lines)]
    head = [f"import {name}" for name in needed]
    return "\n".join([*head, *([""] if head else []), *lines]) + "\n"


def _one(run: Run, screen: Screen, suffix: str, first: Run | None) -> list[str]:
    about = checked(run, screen)
    same = first is not None and first.account is run.account  # two heads of one run
    seen = "seen" if same else f"seen{suffix}"
    kept = _kept(run, screen, seen)
    # What was kept of a batch, and of heads, has its own order; of a single sight the member was chosen already.
    member = 0 if kept is None else run.batch
    place = "" if isinstance(run.account, OneSight) else f"{member}, "
    head = about.numbers[screen.head] if kept is None else screen.head
    names = Names(run, screen, suffix, place, head, seen)
    lines = [] if same else _again(run, names, first) if kept is None else kept
    return [*lines, *cells(names, run.of), *shown(names, run.of, kept is None and not same)]


def _kept(run: Run, screen: Screen, name: str) -> list[str] | None:
    """The lines that open a run that was kept; None where its model is to be run once more."""
    base = run if run.base is None else run.base
    if isinstance(base.account, OneSight):
        file = f"{base.account.name}{SIGHT}"
        return [
            f"{name} = {{{base.account.name!r}: sl.Sight.load({file!r}).select({run.batch})}}  # the file of this run"
        ]
    picture = _is_picture(run)
    own = f"_{OWN}_" in run.id
    # Only the model can say what its own account does not: a reading for a target, effects, what comes next.
    asked = screen.target is not None or "written" in screen.parts or (run.base is not None and not own)
    if base.origin == "notebook" and not (asked and screen.model.held):
        return ["# `seen` is the run of this notebook", *([] if name == "seen" else [f"{name} = seen"])]
    if base.folder is not None and (own or picture or not run.text or not screen.model.at_hand):
        return [f"{name} = sl.load({base.folder.name!r})  # the folder of this run"]
    return None


def _is_picture(run: Run) -> bool:
    return getattr(run.account, "grid", None) is not None and run.model is not None and bool(run.text)


def _again(run: Run, names: Names, first: Run | None) -> list[str]:
    """The lines that run the model once more: its text or its picture, the edits, and gradients for a reading."""
    model, target = names.screen.model, names.screen.target
    edits = list(run.meta.get("edits") or [])
    lines = []
    if model.held:
        lines += [HELD] if first is None else []
    elif first is None or first.model != run.model:
        name = run.model if run.model in BUILTINS else f"folder/of/{run.model}"
        where = "" if model.device == "cpu" else f", device={model.device!r}"
        lines.append(f"model, {'_' if _is_picture(run) else 'tokenizer'} = sl.models.load({name!r}{where})")
    if _is_picture(run):
        lines.append(f"images = model.prepare({run.text!r})[None]")
    else:
        there = ", device=model.device" if model.held or model.device != "cpu" else ""
        lines.append(f"ids = torch.tensor([{_ids(run, model)}]{there})")
    if target is not None:
        than = "" if target[1] is None else f", than={target[1]}"
        lines.append(f"target = sl.targets.logit({target[0]}{than}, at={target[2]})")
    gradients = run.of != "weights"
    options = ["model"]
    options += [f"{[layer.name for layer in run.layers]}"] if model.some else []
    options += ["influence=True"] if gradients else []
    opened = [] if gradients else ["torch.no_grad()"]
    opened += ["sl.edit(model) as edits"] if edits else []
    opened.append(f"sl.watch({', '.join(options)}, keep_qk=True) as {names.seen}")
    output, value = names("output"), names("value")
    lines += [f"with {', '.join(opened)}:", *(f"    {read(edit).python()}" for edit in edits)]
    lines.append(f"    {output} = model({'images' if _is_picture(run) else 'ids'})")
    if gradients:
        lines += [f"    {names('y')} = target({output})", f"    {names.seen}.backward({names('y')})"]
        lines.append(f"{value} = float({names('y')}.detach())")
    elif target is not None:
        lines.append(f"{value} = float(target({output}))")
    return lines


def _ids(run: Run, model: Model) -> str:
    if model.held:
        return str(list(run.account.ids[run.batch]))  # type: ignore[attr-defined]
    return f"tokenizer.encode({run.text or ''!r}).ids" if model.ids is None else str(list(model.ids))
