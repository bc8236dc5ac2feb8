-- Write a new job as `accepting`, unless its idempotency key or the tenant's queue says otherwise.
-- ARGV: prefix, id, idempotency name ('' is none), body hash, deadline ms, idempotency ttl ms, most unfinished, class,
--   most unfinished of the class, path of its body in the object store ('' is none), tombstone ms,
--   name of its reservation ('' is none), batch whose line it is ('' is none), fields...
-- Returns {'accepted', created, expires, queue} | {'same' | 'reused', id} | {'full', ''} | {'over', ''} (the batch is)
local id, idem, hash = ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('HMGET', KEYS[1], 'state', 'created', 'expires', 'queue')
if known[1] and known[1] ~= 'rejected' then
  -- This call again, as its answer was lost; or a rebuild has found that this job is over, and nothing more of it.
  local now = whole(now_ms())
  return {'accepted', known[2] or now, known[3] or now, known[4] or 'main'}
end
local batch = ARGV[13] ~= '' and P .. 'batch:' .. ARGV[13]
if batch and redis.call('HGET', batch, 'state') ~= 'in_progress' then return {'over', ''} end
local now = now_ms()
if idem ~= '' then
  local known = redis.call('GET', P .. 'idem:' .. idem)
  if known then
    local old, old_hash = string.match(known, '^(%S+) (%S+)$')
    local state = redis.call('HGET', P .. 'job:' .. old, 'state')
    if state and state ~= 'rejected' then
      return {old_hash == hash and 'same' or 'reused', old}
    end
  end
end
if redis.call('ZCOUNT', P .. 'unfinished', whole(now), '+inf') >= tonumber(ARGV[7]) then return {'full', ''} end
local expires = now + tonumber(ARGV[5])
-- What a tenant has in a class beyond its part goes to the overflow, so that it cannot fill what workers look at.
local class, queue = P .. 'unfinished:' .. ARGV[8], 'overflow'
redis.call('ZREMRANGEBYSCORE', class, '-inf', '(' .. whole(now))
if redis.call('ZCARD', class) < tonumber(ARGV[9]) then
  queue = 'main'
  redis.call('ZADD', class, whole(expires), id)
end
local fields = {'state', 'accepting', 'created', whole(now), 'expires', whole(expires), 'class', ARGV[8], 'queue', queue}
for i = 14, #ARGV do fields[#fields + 1] = ARGV[i] end
if known[1] then redis.call('DEL', KEYS[1]) end -- rejected, which no client was told: it may be accepted after all
redis.call('HSET', KEYS[1], unpack(fields))
if batch then redis.call('SADD', batch .. ':open', id) end
redis.call('ZADD', P .. 'unfinished', whole(expires), id)
redis.call('ZADD', P .. 'unpublished', whole(now), id)
list(KEYS[1], id)
if ARGV[12] ~= '' then redis.call('ZREM', P .. 'quota:unclaimed', ARGV[12]) end
if ARGV[10] ~= '' then redis.call('ZADD', P .. 'objects', whole(expires + tonumber(ARGV[11])), ARGV[10]) end
if idem ~= '' then redis.call('SET', P .. 'idem:' .. idem, id .. ' ' .. hash, 'PX', ARGV[6]) end
return {'accepted', whole(now), whole(expires), queue}
