"""How servers are measured under load: models, server processes, the load itself, and its report."""
