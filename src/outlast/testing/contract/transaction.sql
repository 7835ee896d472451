-- What a transactional tool of the tests does; every SQL database understands it.

-- name: make_notes
CREATE TABLE contract_notes (note INTEGER);

-- name: add_note
INSERT INTO contract_notes VALUES (1);

-- name: count_notes
SELECT count(*) FROM contract_notes;
