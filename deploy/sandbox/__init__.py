"""A cloud in a box: real machines, a real tailnet and the clouds' APIs on one Linux host."""
