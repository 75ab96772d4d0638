"""What is remembered: records, models, migrations, and the one store that every reader and writer goes through."""
