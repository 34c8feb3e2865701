"""Machines: what is desired, the control loop, and the steps that rent, configure and end them."""
