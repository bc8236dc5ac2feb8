"""Grafana's boards, written from what stands here: their files are long, and their queries are what matters."""
