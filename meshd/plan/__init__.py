"""PURE: decisions. Every function here is a function of its arguments alone."""
