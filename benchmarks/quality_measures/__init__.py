"""What `make quality` trains and measures, and the page that it writes."""
