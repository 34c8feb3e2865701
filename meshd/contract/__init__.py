"""What proves an adapter: the contract suite, its rig, and what a cloud's stand-in needs to be as bad as the cloud.

Nothing that runs on a head imports this package. `faults` and `standin` need no more than meshd does; `suite` needs
pytest, which comes with `meshd[testing]`.
"""
