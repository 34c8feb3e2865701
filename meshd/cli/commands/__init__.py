"""One module for each command of meshctl; its click command is named `command`.

To add a command, copy a short one (`drain`, or `version` for one that only shows), add its name to COMMANDS in
`meshd.cli.main` and a row to docs/meshctl.md. Shared options are in `meshd.cli.params`, tables in `meshd.cli.render`;
`Session.ask` runs a request and turns every failure into an exit code.
"""
