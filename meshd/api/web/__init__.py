"""The page that shows the cluster in a browser: who may look, what it shows, and the server. It changes nothing."""
