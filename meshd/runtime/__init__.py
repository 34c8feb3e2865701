"""The few things that touch the operating system: clock, programs, files, tasks."""
