"""One way of seeing into modules: `observing` for sights, `Monitor` for training, and what `sl.watch` stands on too.

| file       | what it is                                                                    |
| ---------- | ----------------------------------------------------------------------------- |
| `listener` | the function mode that hears attention calls, and what a call of training is  |
| `select`   | the choice of layers by number, name, pattern or function                     |
| `tap`      | a switch in every module of Sightline's, and the numbers that a call is worth |
| `sights`   | sights of the modules of Sightline's                                          |
| `record`   | what a monitor has recorded, as numbers, text and a table                     |
| `alarms`   | bounds that a head may cross                                                  |
| `monitor`  | all heads every so many steps, of any model                                   |
"""

from sightline.nn.observe.sights import Observable, announced, is_observed, observing, reads_cache

__all__ = ["Observable", "announced", "is_observed", "observing", "reads_cache"]
