"""What was spent, who used it, and how far the budget is used."""
