"""What the makefile and the tests need and the product does not."""
