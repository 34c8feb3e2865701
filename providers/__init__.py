"""Adapters, one package per cloud. meshd finds them through the entry-point group `meshd.providers`.

All packages have these files: `provider` (glue; `create` is the entry point), `client` (calls of the vendor's API),
`mapping` (machines, states, the launch request), `offers`, `errors` and `settings`. mapping, offers and errors are
PURE. Some packages have more: `catalogue` (cached instance types), `check` (permissions), `prices` (the vendor's price
list), `sdk` (the set-up of the vendor's SDK). All packages share the modules whose names begin with an underscore.
"""
