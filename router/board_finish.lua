-- Conclude a job: state, result, charges, event and the settle of the tenant's slot, all or nothing.
-- ARGV: prefix, id, name, owner, state, event, keep ms, attempt ('' when none ran), lines, usd, tokens, deployment, lane,
--   microbatch, paths in the object store of its result and its body ('' is none), fields (a count, then names and
--   values), result, ms that the pieces of its stream are kept, settle arguments...; KEYS[2..]: settle keys
-- Returns {'finished', now ms} | {'already', state} | {'lost'}
local job, id, name = KEYS[1], ARGV[2], ARGV[3]
local h = redis.call('HMGET', job, 'state', 'owner', 'result_ttl', 'ended_by', 'finished', 'kind')
if h[1] and TERMINAL[h[1]] then
  if h[4] == ARGV[4] then return {'finished', h[5]} end -- this call again, as its answer was lost
  return {'already', h[1]}
end
if not h[1] or h[2] ~= ARGV[4] then return {'lost'} end
local now = now_ms()
if ARGV[8] ~= '' then
  local c = {attempt = ARGV[8], lines = ARGV[9], usd = ARGV[10], tokens = ARGV[11], deployment = ARGV[12], lane = ARGV[13], microbatch = ARGV[14], concluded = true}
  charge(job, id, c, now)
end
if ARGV[15] ~= '' then redis.call('ZADD', P .. 'objects', whole(now + tonumber(h[3])), ARGV[15]) end
-- What a kind of jobs that has a list of its own was asked is shown with what was made.
local asked_kept = h[6] and tonumber(h[3]) or 0
if ARGV[16] ~= '' and ARGV[5] == 'completed' then redis.call('ZADD', P .. 'objects', whole(now + asked_kept), ARGV[16]) end
local n = tonumber(ARGV[17])
for i = 18, 16 + 2 * n, 2 do redis.call('HSET', job, ARGV[i], ARGV[i + 1]) end
local result = ARGV[18 + 2 * n]
if result ~= '' then redis.call('SET', P .. 'result:' .. id, result, 'PX', h[3]) end
redis.call('HSET', job, 'ended_by', ARGV[4])
conclude(job, id, name, ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(h[3]), now)
redis.call('PEXPIRE', P .. 'chunks:' .. id, ARGV[19 + 2 * n])
settle_rest(1, 19 + 2 * n)
return {'finished', whole(now)}
