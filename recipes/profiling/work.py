#!/usr/bin/env python3
"""Something to profile: most of its time goes into one function."""

import random


def load(count):
    """Make data: cheap."""
    return [random.random() for _ in range(count)]


def train(data, epochs):
    """Sort again and again: dear."""
    for _ in range(epochs):
        random.shuffle(data)
        data = sorted(data, key=lambda value: value * value)
    return data


def main():
    for _ in range(3):
        train(load(20000), 8)


if __name__ == "__main__":
    main()
