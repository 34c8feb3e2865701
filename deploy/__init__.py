"""What is put onto machines, and the sandbox in which all of it is tried."""
