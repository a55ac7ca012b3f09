"""The same two signatures behind other checkers, each declared as fully as that checker can.

Every module defines `hunyuan` and `sparse_mla`: the two operations' signatures with an empty body
behind the checker. A module whose library is not installed cannot be imported, and
`bench/checks.py` prints it as absent.
"""
