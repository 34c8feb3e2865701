"""The daemon: it observes, plans, journals, acts and observes again."""
