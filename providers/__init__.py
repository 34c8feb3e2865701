"""Adapters: one package per cloud. meshd finds them through the entry-point group `meshd.providers`."""
