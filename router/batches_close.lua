-- All is written: the files are there, and the batch ends.
-- ARGV: prefix, id, owner, state, event, kept ms, ttl ms of the files, then for the output and the error file: id ('' is
--   none), about, bytes, path. Returns 1 | 0
local now, state = now_ms(), redis.call('HGET', key, 'state')
if not is_mine() or (state ~= 'finalizing' and state ~= 'cancelling') then return 0 end
for i, name in ipairs({'output', 'error'}) do
  local at = 4 + 4 * i
  if ARGV[at] ~= '' then
    add_file(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[7]), now)
    redis.call('HSET', key, name, ARGV[at])
  end
end
end_batch(ARGV[4], ARGV[5], ARGV[6], now)
return 1
