-- name: notify
-- On another connection than the writer's, after the commit: inside a transaction it would
-- make all processes that commit wait for one another.
SELECT pg_notify(:channel, :hints);

-- name: listen
-- The channel has the schema's name.
LISTEN outlast;
