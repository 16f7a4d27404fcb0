"""Dashboard: a page on the loopback interface that shows a running job."""
