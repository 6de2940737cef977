"""The results of a run: report.json and the page report.html."""
