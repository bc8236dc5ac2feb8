-- Write a new batch, unless its idempotency key or the tenant's other batches say otherwise.
-- ARGV: prefix, id, '', idempotency name ('' is none), body hash, window ms, about (JSON), input file, most unfinished
-- Returns {'created' | 'same' | 'reused', id} | {'full' | 'missing', ''}
local idem, hash, window, now = ARGV[4], ARGV[5], tonumber(ARGV[6]), now_ms()
if redis.call('EXISTS', key) == 1 then return {'created', id} end -- this call again, as its answer was lost
if idem ~= '' then
  local known = redis.call('GET', P .. 'idem:batch:' .. idem)
  if known then
    local old, old_hash = string.match(known, '^(%S+) (%S+)$')
    if redis.call('EXISTS', P .. 'batch:' .. old) == 1 then return {old_hash == hash and 'same' or 'reused', old} end
  end
end
if redis.call('ZCARD', P .. 'batches:active') >= tonumber(ARGV[9]) then return {'full', ''} end
local file, expires = P .. 'file:' .. ARGV[8], now + window
local h = redis.call('HMGET', file, 'expires', 'path')
if not h[1] or tonumber(h[1]) <= now then return {'missing', ''} end
local kept = math.max(tonumber(h[1]), expires + 86400000)
redis.call('HINCRBY', file, 'uses', 1)
redis.call('HSET', file, 'expires', whole(kept))
redis.call('ZADD', P .. 'files:due', whole(kept), ARGV[8])
redis.call('ZADD', P .. 'objects', whole(kept), h[2])
redis.call('HSET', key, 'about', ARGV[7], 'input', ARGV[8], 'created', whole(now), 'expires', whole(expires))
redis.call('ZADD', P .. 'batches', 0, id)
redis.call('ZADD', P .. 'batches:active', whole(now), id)
if idem ~= '' then redis.call('SET', P .. 'idem:batch:' .. idem, id .. ' ' .. hash, 'PX', whole(window + 86400000)) end
set_state('validating', now)
redis.call('PUBLISH', 'batches', string.sub(P, 4, -3) .. ' batches')
return {'created', id}
