"""What is measured on millwheel. Workers import these modules, so they import little themselves."""
