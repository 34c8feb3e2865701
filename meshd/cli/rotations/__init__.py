"""`meshctl rotate-key`: one module for each kind of secret that it rotates."""
