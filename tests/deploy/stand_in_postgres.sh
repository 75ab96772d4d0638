# Stands for the official image's entry point, as far as compose.yaml relies on it: root hands the folder to the user
# postgres and goes on as that one; without a password nothing starts; the database is prepared by a server that listens
# on its socket alone.
set -eu
if [ "$(id -u)" = 0 ]; then
    chown postgres "$PGDATA" /var/run/postgresql
    chmod 0700 "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups sh "$0"
fi
: "${POSTGRES_PASSWORD:?is not specified}"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s\n' "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password $POSTGRES_INITDB_ARGS
    printf 'host all all all scram-sha-256\n' >> "$PGDATA/pg_hba.conf"
    pg_ctl -w start -o "-c listen_addresses=''"
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w -m fast stop
fi
exec postgres -c "listen_addresses=*"
