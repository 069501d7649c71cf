"""A store on object storage: shards are logs of numbered objects, with working copies on local disks."""
