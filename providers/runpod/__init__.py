"""RunPod: pods, by its REST API v2."""
