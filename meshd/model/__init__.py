"""PURE: the words as types. No I/O, no clock, no randomness."""
