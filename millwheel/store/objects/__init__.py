"""A store on object storage: logs of numbered objects, and local working copies."""
