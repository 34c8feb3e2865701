"""An adapter from outside, as small as one can be: stand-in, adapter, rig, and ways to get it wrong.

It imports what anybody has who installs `meshd[testing]`, and nothing else of this repository.
"""
