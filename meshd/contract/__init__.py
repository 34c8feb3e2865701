"""The contract suite: test cases for any adapter, and the base of a cloud's stand-in that injects faults.

No code that runs on a head imports this package. `faults` and `standin` need only meshd; `suite` needs pytest, which
`meshd[testing]` installs.
"""
