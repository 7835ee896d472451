-- A table of the user's own in the database of the log.

-- name: create
CREATE TABLE bookings (session_id TEXT, call_id TEXT, value TEXT);

-- name: purchase
INSERT INTO bookings VALUES (?, ?, ?);

-- name: list
SELECT session_id, call_id, value FROM bookings ORDER BY rowid;
