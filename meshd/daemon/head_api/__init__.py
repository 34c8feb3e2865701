"""What people ask of the head: the service behind meshctl, its views, problems and checks."""
