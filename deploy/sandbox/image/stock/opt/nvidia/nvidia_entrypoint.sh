#!/bin/sh
# Stands in for the entry point of NVIDIA's images, which prints what is there and runs the container's arguments.
exec "$@"
