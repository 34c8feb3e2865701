"""Options and arguments that commands share, and the types of their values."""
