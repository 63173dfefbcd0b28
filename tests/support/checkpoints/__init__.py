"""Files of other projects: checkpoints, folders and packages, random or trained here, and a hub."""
