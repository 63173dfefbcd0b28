"""The playground: a web page that translates over the JSON API."""
