-- The statements of the transactional tool in the tests; every SQL database understands them.

-- name: make_notes
CREATE TABLE contract_notes (note INTEGER);

-- name: add_note
INSERT INTO contract_notes VALUES (1);

-- name: count_notes
SELECT count(*) FROM contract_notes;
