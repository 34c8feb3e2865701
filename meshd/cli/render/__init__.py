"""The daemon's documents as text and tables for people."""
