"""What tensors contain: conditions on elements, judged in torch or watched on the device.

`condition` reads an expression, over `splitting` and `numbers`; `settle` leaves what a call's
numbers do not decide. `evaluate` judges it in torch, over `elements` and `rows`, in the dtypes that
`promotion` names and whatever is switched on, `plainly`. `offence` holds what was found and says
it, `watch` judges without waiting.
"""
