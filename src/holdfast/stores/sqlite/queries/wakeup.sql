-- name: add_listener
INSERT OR REPLACE INTO holdfast_listeners (address, place) VALUES (:address, :place);

-- name: drop_listener
DELETE FROM holdfast_listeners WHERE address = :address;

-- name: listeners
SELECT address FROM holdfast_listeners WHERE place = :place;
