"""The example of docs/adapters.md: a small adapter with its stand-in and rig, and adapters with bugs.

It imports only what `meshd[testing]` installs.
"""
