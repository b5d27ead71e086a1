"""Its one program is started by spark-submit, which puts the directory before all others that Python looks into."""
