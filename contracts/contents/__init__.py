"""What tensors contain: conditions on elements, judged in torch or watched on the device.

`condition` reads an expression, `evaluate` judges it in torch, `offence` holds what was found and
says it, `watch` judges without waiting.
"""
