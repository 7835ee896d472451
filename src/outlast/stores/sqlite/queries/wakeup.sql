-- name: add_listener
INSERT OR REPLACE INTO outlast_listeners (address, place) VALUES (:address, :place);

-- name: drop_listener
DELETE FROM outlast_listeners WHERE address = :address;

-- name: listeners
SELECT address FROM outlast_listeners WHERE place = :place;
